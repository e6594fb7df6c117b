# stage ROOT TOKEN MODEL VERSION, with lines SHA256 MODE NAME: create a version's folder, which is not yet in use
mine "$1" "$2"
part=$1/$3/versions/.part-$4
rm -rf "$part"
mkdir -p "$part" || exit 1
while IFS=' ' read -r sum mode name; do
    case $name in */*) mkdir -p "$part/${name%/*}" || exit 1 ;; esac
    ln "$1/.kiln/blobs/$sum" "$part/$name" 2>/dev/null || cp "$1/.kiln/blobs/$sum" "$part/$name" || exit 1
    if [ "$mode" = x ]; then chmod 555 "$part/$name"; fi
    printf '%s  %s\n' "$sum" "$name" >>"$part/SHA256SUMS" || exit 1
done
mv "$part" "$1/$3/versions/$4"

# clean ROOT TOKEN MODEL VERSION…: remove versions other than VERSION…, and contents that no version needs
mine "$1" "$2"
root=$1 model=$3 token=$2
shift 3
for folder in "$root/$model"/versions/* "$root/$model"/versions/.part-*; do
    kept=no
    for name; do if [ "$folder" = "$root/$model/versions/$name" ]; then kept=yes; fi; done
    if [ "$kept" = no ] && [ -d "$folder" ]; then rm -rf "$folder"; fi
done
rm -rf "$root/.kiln/incoming" "$root/.kiln/runs" "$root/.kiln/chunks"
needed=$(cat "$root"/*/versions/*/SHA256SUMS "$root"/.kiln/keep/* 2>/dev/null | cut -c1-64)
for file in "$root"/.kiln/blobs/*; do
    case $needed in *"${file##*/}"*) ;; *) mine "$root" "$token" && rm -f "$file" ;; esac
done
exit 0

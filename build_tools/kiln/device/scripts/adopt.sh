# adopt ROOT TOKEN TOOL: compare each copied file with its SHA-256, which is its name; keep it when they agree
mine "$1" "$2"
for file in "$1/.kiln/incoming/$2"/*; do
    name=${file##*/}
    if [ "$(sum_of "$file" "$3")" = "$name" ]; then
        chmod 444 "$file" && mv -f "$file" "$1/.kiln/blobs/$name" || exit 1
        printf 'blob\t%s\n' "$name"
    else
        rm -f "$file"
        printf 'damaged\t%s\n' "$name"
    fi
done

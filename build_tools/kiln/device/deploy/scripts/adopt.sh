# adopt ROOT TOKEN TOOL: keep each copied file whose SHA-256 is equal to its name, remove the others
mine "$1" "$2"
for file in "$1/.kiln/incoming/$2"/*; do
    if [ "$(sum_of "$file" "$3")" = "${file##*/}" ]; then
        keep "$1" "$file" || exit 1
        printf 'blob\t%s\n' "${file##*/}"
    else
        rm -f "$file"
        printf 'damaged\t%s\n' "${file##*/}"
    fi
done
rm -rf "$1/.kiln/incoming"

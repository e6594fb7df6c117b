# state ROOT MODEL TOOL: print the contents, versions and the bundle in use; keeps complete files of interrupted copies
for file in "$1"/.kiln/incoming/*/*; do
    if [ -f "$file" ] && [ "$(sum_of "$file" "$3")" = "${file##*/}" ]; then keep "$1" "$file"; fi
done
rm -rf "$1"/.kiln/incoming "$1"/.kiln/runs "$1"/*/versions/.part-* "$1"/*/.current-*
for file in "$1"/.kiln/blobs/*; do
    if [ -f "$file" ]; then printf 'blob\t%s\n' "${file##*/}"; fi
done
if [ -n "$2" ]; then
    for folder in "$1/$2"/versions/*; do
        if [ -d "$folder" ]; then printf 'version\t%s\n' "${folder##*/}"; fi
    done
    now=$(current_of "$1/$2")
    printf 'current\t%s\n' "$now"
    if [ -n "$now" ]; then printf 'installed\t'; cat "$1/$2/$now/installed.json"; fi
fi
exit 0

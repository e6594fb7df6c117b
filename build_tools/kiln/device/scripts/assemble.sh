# assemble ROOT TOKEN, with lines SOURCE START BYTES, and = SHA256 after each file's: put files together from parts
mine "$1" "$2"
cd "$1/.kiln/incoming/$2" || exit 1
while IFS=' ' read -r source start bytes; do
    if [ "$source" = = ]; then
        mv -f made "$start" || exit 1
        continue
    fi
    file=../../blobs/$source
    if [ ! -f "$file" ]; then file=./$source; fi
    tail -c "+$start" "$file" | head -c "$bytes" >>made || exit 1
done
rm -f pieces

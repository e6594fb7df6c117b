# verify FOLDER TOOL, with lines NAME: print the SHA-256 of each file NAME, read back from storage
cd "$1" || exit 1
while IFS= read -r name; do
    if [ -f "./$name" ]; then sum=$(sum_of "./$name" "$2"); else sum=missing; fi
    printf '%s %s\n' "$sum" "$name"
done

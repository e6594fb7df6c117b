# chunks ROOT, with lines SHA256: of which chunks these files consist
while IFS= read -r sum; do
    printf '=%s\n' "$sum"
    cat "$1/.kiln/chunks/$sum"
done
exit 0

# run ROOT TOKEN RUN KEEP SECONDS PROGRAM ARGUMENT…, with lines SHA256 NAME: run a program in a new folder with the files NAME
mine "$1" "$2"
root=$1 folder=$1/.kiln/runs/$3 keep=$1/.kiln/keep/$4 seconds=$5
shift 5
mkdir -p "$folder" "$root/.kiln/keep" || exit 1
while IFS=' ' read -r sum name; do
    ln "$root/.kiln/blobs/$sum" "$folder/$name" 2>/dev/null || cp "$root/.kiln/blobs/$sum" "$folder/$name" || exit 1
    printf '%s  %s\n' "$sum" "$name"
done >"$keep.new" && mv -f "$keep.new" "$keep" || exit 1
cd "$folder" && chmod 555 "./$1" || exit 1
"./$@" </dev/null &
program=$!
(
    sleep "$seconds" &
    nap=$!
    trap 'kill "$nap"; exit' TERM
    wait "$nap" && kill -9 "$program"
) </dev/null >/dev/null 2>&1 &
watch=$!
wait "$program"
status=$?
kill "$watch" 2>/dev/null
exit "$status"

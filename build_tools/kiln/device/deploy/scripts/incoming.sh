# incoming ROOT TOKEN: make the folder that files are copied to
mine "$1" "$2"
mkdir -p "$1/.kiln/incoming/$2"

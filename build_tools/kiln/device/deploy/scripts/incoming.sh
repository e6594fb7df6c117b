# incoming ROOT TOKEN: create the folder for files that are copied to the device
mine "$1" "$2"
mkdir -p "$1/.kiln/incoming/$2"

# switch ROOT TOKEN MODEL VERSION: make VERSION the one in use, by one rename
mine "$1" "$2"
cd "$1/$3" && [ -d "versions/$4" ] || exit 1
sync
rm -rf ".current-$2"
if ln -s "versions/$4" ".current-$2" 2>/dev/null && mine "$1" "$2" && mv -f -T ".current-$2" current 2>/dev/null; then
    sync
    exit 0
fi
# Without symbolic links in the file system, or without mv -T, `current` is a small file that names the folder.
rm -rf ".current-$2"
if [ -L current ]; then echo "current cannot be renamed over with this device's mv" >&2; exit 1; fi
printf 'versions/%s\n' "$4" >".current-$2" && mine "$1" "$2" && mv -f ".current-$2" current || exit 1
sync

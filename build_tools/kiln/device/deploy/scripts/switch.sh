# switch ROOT TOKEN MODEL VERSION: from now on this version is in use; one rename, before it the old one is
mine "$1" "$2"
cd "$1/$3" && [ -d "versions/$4" ] || exit 1
sync
rm -rf ".current-$2"
if ln -s "versions/$4" ".current-$2" 2>/dev/null && mine "$1" "$2" && mv -f -T ".current-$2" current 2>/dev/null; then
    sync
    exit 0
fi
# A file system without links, or a mv without -T: then `current` is a small file that names the folder.
rm -rf ".current-$2"
if [ -L current ]; then echo "current cannot be renamed over with this device's mv" >&2; exit 1; fi
printf 'versions/%s\n' "$4" >".current-$2" && mine "$1" "$2" && mv -f ".current-$2" current || exit 1
sync

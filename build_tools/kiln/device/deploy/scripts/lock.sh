# lock ROOT TOKEN OWNER: take the lock of the device for this host, or print its holder
mkdir -p "$1/.kiln/blobs" || exit 1
if mkdir "$1/.kiln/lock" 2>/dev/null; then
    if printf '%s\n%s\n' "$2" "$3" >"$1/.kiln/lock/owner"; then
        echo taken
    else
        rm -rf "$1/.kiln/lock"
        exit 1
    fi
elif [ -d "$1/.kiln/lock" ]; then
    echo held
    cat "$1/.kiln/lock/owner" "$1/.kiln/lock/beat" 2>/dev/null
    exit 0
else
    mkdir "$1/.kiln/lock"
fi

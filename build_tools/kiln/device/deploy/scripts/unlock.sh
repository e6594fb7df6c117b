# unlock ROOT TOKEN OWN: end the lock that TOKEN holds: our own, or that of a host which is gone
if [ "$(owner_of "$1")" = "$2" ] && mv "$1/.kiln/lock" "$1/.kiln/unlocked-$3" 2>/dev/null; then
    rm -rf "$1/.kiln/unlocked-$3"
fi

# unlock ROOT TOKEN OWN: remove the lock that TOKEN holds: this host's, or the lock of a host that is gone
if [ "$(owner_of "$1")" = "$2" ] && mv "$1/.kiln/lock" "$1/.kiln/unlocked-$3" 2>/dev/null; then
    rm -rf "$1/.kiln/unlocked-$3"
fi

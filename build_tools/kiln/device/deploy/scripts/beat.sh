# beat ROOT TOKEN COUNT: show other hosts that this one is still at work
[ "$(owner_of "$1")" = "$2" ] && printf '%s\n' "$3" >"$1/.kiln/lock/beat"

# Precedes every script. Scripts run in any POSIX shell, with the tools of coreutils, busybox or toybox.
LC_ALL=C
export LC_ALL
umask 022
owner_of() { # ROOT: print the token of the lock's holder, or nothing
    token=
    if [ -f "$1/.kiln/lock/owner" ]; then IFS= read -r token <"$1/.kiln/lock/owner"; fi
    printf '%s' "$token"
}
mine() { # ROOT TOKEN: exit with status 3 unless this host holds the lock
    [ "$(owner_of "$1")" = "$2" ] || { echo "another host has taken the lock" >&2; exit 3; }
}
current_of() { # MODEL'S FOLDER: print versions/NAME of the bundle in use, or nothing
    if [ -L "$1/current" ]; then readlink "$1/current"; elif [ -f "$1/current" ]; then cat "$1/current"; fi
}
sum_of() { # FILE TOOL: print the SHA-256 in hexadecimal
    # The tool may be two words, such as "openssl dgst".
    # shellcheck disable=SC2086
    $2 <"$1" | cut -c1-64
}
keep() { # ROOT FILE: move a checked file to the blobs
    chmod 444 "$2" && mv -f "$2" "$1/.kiln/blobs/${2##*/}"
}

# facts FOLDER: print the machine's CPU, memory, disk space, system and tools; writes nothing
say() { printf '%s\t%s\n' "$1" "$2"; }
first() { if [ -r "$1" ]; then IFS= read -r line <"$1" && say "$2" "$line"; fi; }
say home "$HOME"
say machine "$(uname -m)"
say kernel "$(uname -s -r)"
say host "$(uname -n)"
say bits "$(getconf LONG_BIT 2>/dev/null)"
say time "$(date +%s)"
grep -E '^(vendor_id|cpu family|model|model name|Features|flags|CPU implementer|CPU part|Hardware|Model)[[:space:]]*:' /proc/cpuinfo 2>/dev/null |
    sort -u | while IFS= read -r line; do say cpuinfo "$line"; done
say cores "$(grep -c '^processor' /proc/cpuinfo 2>/dev/null)"
while IFS= read -r line; do
    case $line in MemTotal:* | MemAvailable:*) say memory "$line" ;; esac
done </proc/meminfo 2>/dev/null
first /proc/device-tree/model board
first /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor governor
first /sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq khz
for zone in /sys/class/thermal/thermal_zone*; do
    if [ -r "$zone/temp" ]; then say temperature "$(cat "$zone/temp" 2>/dev/null) $(cat "$zone/type" 2>/dev/null)"; fi
done
if [ -r /etc/os-release ]; then say os "$(. /etc/os-release && printf %s "$PRETTY_NAME")"; fi
if command -v getprop >/dev/null 2>&1; then
    say os "Android $(getprop ro.build.version.release)"
    say board "$(getprop ro.product.manufacturer) $(getprop ro.product.model)"
fi
if [ -e /system/bin/linker64 ]; then say libc "bionic $(getprop ro.build.version.sdk 2>/dev/null)"; fi
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
for path in /lib/ld-musl-*.so.1; do if [ -e "$path" ]; then say libc musl; fi; done
for path in /lib/*-linux-gnu*/libc.so.6 /lib64/libc.so.6 /lib/libc.so.6; do
    if [ -z "$libc" ] && [ -x "$path" ]; then
        libc=$("$path" 2>/dev/null | while IFS= read -r line; do case $line in *release\ version*)
            line=${line##*release version }; printf 'glibc %s' "${line%%[!0-9.]*}"; break ;; esac; done)
    fi
done
if [ -n "$libc" ]; then say libc "$libc"; fi
folder=$1
case $folder in '~/'*) folder=$HOME/${folder#'~/'} ;; esac
while [ ! -d "$folder" ] && [ "$folder" != / ]; do folder=${folder%/*}; folder=${folder:-/}; done
df -P -k "$folder" 2>/dev/null | while IFS= read -r line; do say disk "$line"; done
for tool in sha256sum "busybox sha256sum" "toybox sha256sum" "shasum -a 256" "openssl dgst -sha256 -r"; do
    # shellcheck disable=SC2086
    case $(printf abc | $tool 2>/dev/null) in
    ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad*) say checksum "$tool"; break ;;
    esac
done

# end ROOT RUN: remove the folder of a run
rm -rf "$1/.kiln/runs/$2"
rmdir "$1/.kiln/runs" 2>/dev/null
exit 0

# end ROOT RUN: remove the folder of a run
rm -rf "$1/.kiln/runs/$2"

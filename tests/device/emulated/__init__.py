"""A whole AArch64 Linux machine for the tests: Debian's kernel and packages in QEMU, reached through ssh."""

"""Programs without an operating system: ELF images, gdb's protocol, files over it."""

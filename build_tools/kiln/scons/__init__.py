"""The SCons tool: which program makes which file from what. It knows stages by name only."""

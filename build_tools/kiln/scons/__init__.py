"""The SCons tool: which program makes which file from what. Knows the stages by name only, never imports TVM."""

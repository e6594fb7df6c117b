"""Stages on other machines: workers of Dask run them, and their files go through the cache of the build.

SCons decides which stages are out of date, as in any build. `cluster` hands such a stage to Dask's scheduler,
`worker` runs it there in a folder of its own, `facts` compares the versions on both sides, and `local` is a
cluster on this machine.
"""

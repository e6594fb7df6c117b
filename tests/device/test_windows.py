"""A bundle for Windows in Wine: files and processors of the runtime's own file, and the DLL."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kiln import packages
from kiln.config import load_target
from kiln.device.check.runners import open_runner
from kiln.device.link import link, link_flags
from kiln.emit.headers import include_flags
from kiln.paths import data_dir

from .building import Project, write_small_network

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("wine") is None, reason=packages.missing_program("wine")),
]

FILES = """
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "internal.h"

static unsigned char memory[64];

int main(void) {
    const void *image = NULL;
    size_t bytes = 1;
    FILE *file = fopen("data.bin", "wb");
    fwrite("0123456789\\r\\n\\x1a", 1, 13, file);
    fclose(file);
    fclose(fopen("empty.bin", "wb"));
    printf("%d ", kiln_map_params("data.bin", &image, &bytes) == KILN_OK && bytes == 13);
    printf("%d ", memcmp(image, "0123456789\\r\\n\\x1a", 13) == 0);
    kiln_unmap_params(image, bytes);
    printf("%d ", kiln_map_params("empty.bin", &image, &bytes) == KILN_PARAMS_TRUNCATED);
    printf("%d ", kiln_map_params("none.bin", &image, &bytes) == KILN_SYSTEM_FILE && errno == ENOENT);
    printf("%d ", image == NULL && bytes == 0);
    printf("%d ", kiln_map_params(".", &image, &bytes) == KILN_SYSTEM_FILE && errno == EACCES);
    printf("%d ", kiln_map_params("\\xff\\xfe", &image, &bytes) == KILN_SYSTEM_FILE && errno == EINVAL);
    printf("%d ", kiln_read_params("data.bin", memory, sizeof memory, &bytes) == KILN_OK && bytes == 13);
    printf("%d ", memory[12] == 0x1a && memory[13] == 0);
    printf("%d ", kiln_read_params("data.bin", memory, 12, &bytes) == KILN_PARAMS_MEMORY && bytes == 0);
    printf("%d ", kiln_read_params("none.bin", memory, 12, &bytes) == KILN_SYSTEM_FILE && errno == ENOENT);
    printf("%d\\n", kiln_processors() >= 1);
    return 0;
}
"""
DLL = """
#include <stdio.h>
#include "net.h"

static _Alignas(NET_ARENA_ALIGN) unsigned char arena[NET_ARENA_BYTES];
static float x[NET_INPUT_0_ELEMENTS], y[NET_OUTPUT_0_ELEMENTS];

int main(void) {
    kiln_session session;
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    float sum = 0;
    if (kiln_open(&session, &net, &config) != KILN_OK || net_run(&session, x, y) != KILN_OK)
        return 1;
    for (int i = 0; i < NET_OUTPUT_0_ELEMENTS; i++)
        sum += y[i];
    printf("%s %.3f\\n", session.variant->name, sum);
    return 0;
}
"""


def test_files_and_processors(tmp_path: Path) -> None:
    target, runtime = load_target("windows_x86_64"), data_dir("runtime_c")
    (tmp_path / "main.c").write_text(FILES)
    program = link(
        target,
        [tmp_path / "main.c", runtime / "platform/platform_windows.c"],
        [*link_flags(target, "none"), f"-I{runtime / 'core'}", *include_flags()],
        tmp_path / "files",
    )
    assert program.suffix == ".exe"
    done = open_runner("wine", target).run(program, [], send={}, fetch={}, timeout=300)
    assert done.stdout.split() == ["1"] * 12


def test_a_bundle_and_its_library(tmp_path: Path) -> None:
    project = Project(tmp_path)
    write_small_network(tmp_path / "net.onnx")
    printed = project.make("target=windows_x86_64", "model=net.onnx", "test")
    assert "net on windows_x86_64 (wine)" in printed and "FAILED" not in printed
    bundle, target = project.bundle("windows_x86_64", "net"), load_target("windows_x86_64")
    (tmp_path / "main.c").write_text(DLL)
    program = link(
        target,
        [tmp_path / "main.c"],
        link_flags(target, "none"),
        tmp_path / "work" / "dll",
        include=[bundle.include],
        libraries=[bundle.folder / "lib/net.lib"],
    )
    shutil.copy(bundle.folder / "lib/net.dll", tmp_path / "net.dll")
    done = open_runner("wine", target).run(
        program, [], send={"net.dll": tmp_path / "net.dll"}, fetch={}, timeout=300
    )
    assert done.status == 0, done.stderr
    assert done.stdout.split() == ["v3", "1.000"]  # a softmax

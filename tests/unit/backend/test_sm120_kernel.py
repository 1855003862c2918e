"""The CUDA kernel compiles for SM90 and SM120 and keeps to its budget of registers; no GPU is needed to know."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from glm5_mla.kernels.native import build, library

KERNEL_SOURCE = build.SOURCES[0]
MAX_REGISTERS = 255
RINGS, WARPGROUPS, CP_ASYNC = ("1,0,2", "1,0,3", "2,0,3"), "4,1,4", "4,2,3"


class Usage(NamedTuple):
    registers: int
    spilled: int


@pytest.fixture(scope="module")
def nvcc():
    if shutil.which("g++") is None:
        pytest.skip("nvcc needs g++")
    try:
        return build.find_nvcc()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=build.ARCHITECTURES)
def usage(request, nvcc, tmp_path_factory) -> dict[str, Usage]:
    """Registers and spilled bytes of each variant "column blocks,way,stages" as ptxas reports them."""
    output = tmp_path_factory.mktemp(request.param) / "kernel.cubin"
    arguments = ("-cubin", "-Xptxas=-v", "-Werror=all-warnings", "-o", str(output), str(KERNEL_SOURCE))
    done = subprocess.run(
        build.command(nvcc, (request.param,), *arguments), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"Compiling entry function '\w*?mla_decodeILi(\d)ELNS_3WayE(\d)ELi(\d)E\w*'"
        r".*?(\d+) bytes spill stores.*?Used (\d+) registers",
        done.stderr,
        flags=re.DOTALL,
    )
    return {",".join(variant): Usage(int(registers), int(spilled)) for *variant, spilled, registers in found}


@pytest.mark.timeout(300)
class TestCompiledKernel:
    def test_has_every_variant(self, usage):
        assert set(usage) == {*RINGS, WARPGROUPS, CP_ASYNC}

    @pytest.mark.parametrize("variant", RINGS)
    def test_warps_that_compute_and_warps_that_copy_share_the_register_file(self, usage, variant):
        assert usage[variant].registers * 384 <= 65536

    @pytest.mark.parametrize("variant", [WARPGROUPS, CP_ASYNC])
    def test_a_thread_has_at_most_255_registers(self, usage, variant):
        assert usage[variant].registers <= MAX_REGISTERS

    @pytest.mark.parametrize("variant", [*RINGS, WARPGROUPS, CP_ASYNC])
    def test_spills_stay_few(self, usage, variant):
        assert usage[variant].spilled <= 64


def test_every_call_finds_its_workspace_within_what_was_asked_for(nvcc, tmp_path):
    program = tmp_path / "workspace_layout"
    source = Path(__file__).with_name("workspace_layout.cu")
    command = build.command(nvcc, (), f"-I{KERNEL_SOURCE.parent}", "-gencode=arch=compute_90a,code=compute_90a")
    subprocess.run([*command, "-o", str(program), str(source)], check=True, timeout=300)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_library_is_loaded_by_the_interface_version_that_the_header_states():
    header = KERNEL_SOURCE.with_name("mla_decode.h").read_text()
    assert re.search(rf"#define GLM5_MLA_ABI {library.ABI}\b", header)


def test_the_arguments_have_the_fields_of_the_header_in_its_order():
    header = KERNEL_SOURCE.with_name("mla_decode.h").read_text()
    struct = re.search(r"typedef struct \{(.*?)\} Glm5MlaArgs;", header, flags=re.DOTALL).group(1)
    code = re.sub(r"//.*", "", struct)
    declared = [re.sub(r"^\s*(const )?\w+", "", line) for line in code.split(";")]
    names = [name.strip(" *\n") for line in declared for name in line.split(",")]
    assert [name for name in names if name] == [field[0] for field in library.Args._fields_]


def test_a_missing_library_is_reported_by_its_path(tmp_path):
    with pytest.raises(OSError, match=r"absent\.so"):
        library.Library(tmp_path / "absent.so")

"""What a linker is given where CUDA's compiler comes from Python packages."""

import ctypes
import shutil

import pytest

from glm5_mla.kernels.flashinfer_build import link_libraries


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_runtime_gets_its_short_name_and_the_driver_an_empty_stand_in(tmp_path):
    home, folder = tmp_path / "cuda", tmp_path / "links"
    (home / "lib").mkdir(parents=True)
    folder.mkdir()
    (home / "lib/libcudart.so.13").write_bytes(b"the runtime")
    link_libraries(folder, home)
    assert (folder / "libcudart.so").read_bytes() == b"the runtime"
    ctypes.CDLL(str(folder / "libcuda.so"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_toolkit_with_its_own_libraries_needs_no_links(tmp_path):
    (tmp_path / "links").mkdir()
    link_libraries(tmp_path / "links", tmp_path / "cuda")
    assert not (tmp_path / "links/libcudart.so").exists()

"""What Linux tells of a processor."""

import pytest

from pipelines.models.inference.processor import computes_in_bf16, mkl_ignores_avx512

AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl"


def told(folder, vendor, flags):
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu sse {flags}\n")
    return path


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", AVX512, True),
        ("AuthenticAMD", "avx2", False),
        ("AuthenticAMD", "avx512f avx512cd", False),
        ("GenuineIntel", AVX512, False),
    ],
)
def test_mkl_uses_avx512_on_processors_of_intel(tmp_path, vendor, flags, expected):
    assert mkl_ignores_avx512(told(tmp_path, vendor, flags)) is expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx512_bf16", True), ("amx_bf16", True), ("bf16", True), (AVX512, False)],
)
def test_bf16_is_found_among_the_instructions(tmp_path, flags, expected):
    assert computes_in_bf16(told(tmp_path, "AuthenticAMD", flags)) is expected


def test_where_nothing_is_told_nothing_is_assumed(tmp_path):
    assert not mkl_ignores_avx512(tmp_path / "none")
    assert not computes_in_bf16(tmp_path / "none")

"""Decoders that end their process take no other with them."""

import os
import signal
from pathlib import Path

import pydicom
import pytest
from pydicom.data import get_testdata_file

from silodp.cohorts.catalogue import Unreadable
from silodp.cohorts.sources import decoder_process
from silodp.cohorts.sources.decoder_process import Ended, decode_apart
from silodp.cohorts.sources.dicom import read_dicom_image


def sound() -> Path:
    return Path(str(get_testdata_file("MR_small_jpeg_ls_lossless.dcm")))


@pytest.mark.parametrize("name", ["MR_small_jpeg_ls_lossless.dcm", "SC_rgb_dcmtk_+eb+cr.dcm", "JPEG2000.dcm"])
def test_the_other_process_gives_what_pydicom_gives_here(name: str) -> None:
    path = str(get_testdata_file(name))
    here = pydicom.pixels.pixel_array(path)
    apart = decode_apart(path)
    assert (apart.dtype, apart.tolist()) == (here.dtype, here.tolist())


def test_a_file_over_which_gdcm_ends_its_process_is_refused(tmp_path: Path) -> None:
    file = pydicom.dcmread(str(get_testdata_file("SC_rgb_dcmtk_+eb+cr.dcm")))
    file.BitsStored = 2  # not what its pixels have: gdcm 3.2 throws what nobody catches
    file.save_as(tmp_path / "a.dcm")
    with pytest.raises(Unreadable, match="cannot be decoded"):
        read_dicom_image(tmp_path / "a.dcm")
    assert read_dicom_image(sound()).pixels.shape == (1, 1, 64, 64)


def test_an_error_of_the_decoder_comes_back_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="Transfer Syntax UID"):
        decode_apart(str(tmp_path / "a.dcm"))


def test_a_decoder_that_was_killed_while_idle_is_replaced() -> None:
    decode_apart(str(sound()))
    process = decoder_process._idle[-1]._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert decode_apart(str(sound())).shape == (64, 64)


def test_a_decoder_that_does_not_come_to_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    decode_apart(str(sound()))
    os.kill(decoder_process._idle[-1]._process.pid, signal.SIGSTOP)  # as if it were at work for ever
    monkeypatch.setattr(decoder_process, "SECONDS", 0)
    with pytest.raises(Ended, match="takes more than 0 seconds"):
        decode_apart(str(sound()))
    monkeypatch.undo()
    assert decode_apart(str(sound())).shape == (64, 64)

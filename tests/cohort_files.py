"""What the tests of cohorts write and look at: pictures, volumes, DICOM, tables, folders that are closed."""

import errno
import os
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from silodp.cohorts.catalogue import Catalogue

PIXELS = np.arange(48, dtype=np.uint8).reshape(6, 8)
AS_DICOM = np.diag([-1.0, -1.0, 1.0, 1.0])  # columns to the left hand, rows to the back


def touch(root: Path, *names: str) -> None:
    """Files that nobody is going to read."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def save(root: Path, name: str, pixels: NDArray[Any] = PIXELS, affine: NDArray[Any] = AS_DICOM) -> Path:
    """A file of the kind that its ending says; DICOM is MR of the patient P7."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.lower().endswith((".nii", ".nii.gz")):
        nibabel.save(nibabel.Nifti1Image(pixels, affine), path)
    elif name.endswith(".dcm"):
        save_dicom(path, dicom(pixels.astype("<u2"), Modality="MR", PatientID="P7"))
    else:
        Image.fromarray(pixels).save(path)
    return path


def dicom(pixels: NDArray[Any], bits: int = 16, **tags: Any) -> Dataset:
    """CT with these stored numbers: (frames, height, width[, 3]) or (height, width[, 3])."""
    colour = pixels.shape[-1] == 3 and pixels.ndim > 2
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = CTImageStorage
    dataset.SOPInstanceUID = generate_uid()
    dataset.Modality = "CT"
    dataset.Rows, dataset.Columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
    dataset.SamplesPerPixel = 3 if colour else 1
    dataset.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = 8 * pixels.dtype.itemsize
    dataset.BitsStored = min(bits, dataset.BitsAllocated)
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim > (3 if colour else 2):
        dataset.NumberOfFrames = len(pixels)
    dataset.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


def hounsfield(units: NDArray[Any], **tags: Any) -> Dataset:
    """CT with these units, stored as scanners store them."""
    return dicom((units + 1024).astype("<i2"), RescaleSlope=1, RescaleIntercept=-1024, **tags)


def save_dicom(path: Path, dataset: Dataset) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def write_csv(path: Path, header: str, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def close(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """As if the rights to these folders were taken away, which does not keep the superuser out."""
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) in folders:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


def problems(catalogue: Catalogue) -> dict[str, str]:
    return {problem.name: problem.what for problem in catalogue.problems}

"""`ehrseq study merge`: the sites' aggregates → pooled metrics, calibration, and differences between sites."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, refuse_overlap, write_json
from ehrsequencing.core.outputs import STUDY, STUDY_SITE, complete_folder, write_manifest
from ehrsequencing.study.pooling import SUMS, heterogeneity, pooled, pooled_bins

RESULT = "study.json"


def merge(
    files: Sequence[Path],
    out: Path,
    *,
    draw: Callable[[dict[str, Any], Path], None] = lambda result, folder: None,
) -> dict[str, Any]:
    """Merge what several sites wrote with the same pack.

    Args:
        files: What `ehrseq study run` wrote at each site.
        out: Folder to make, with `study.json`; an earlier merge there is replaced.
        draw: Called with the result and the folder that is being written, to add a page.

    Returns:
        The content of `study.json`.

    Raises:
        EhrseqError: A file is no site's, two sites have one name or the same patients, or they ran different packs.
    """
    sites = read_sites(files)
    result = merged(sites)
    refuse_overlap(out, *files)
    with complete_folder(out, STUDY) as folder:
        write_json(folder / RESULT, result)
        draw(result, folder)
        write_manifest(folder, {**STUDY.facts, "run": result["run"], "sites": result["sites"]})
    return result


def read_sites(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The sites of one study; see `merge` for the errors."""
    sites: list[dict[str, Any]] = []
    for path in files:
        site = read_json(path)
        if not STUDY_SITE.is_of(site):
            raise EhrseqError(
                "is not what ehrseq study run writes",
                where=str(path),
                fix="name the files of the sites",
            )
        if sites and any(
            site[key] != sites[0][key] for key in ("run", "causes", "horizons_days", "risk_edges")
        ):
            fix = "run the same pack at every site"
            raise EhrseqError(f"is of another pack than {files[0]}", where=str(path), fix=fix)
        if site["site"] in [other["site"] for other in sites]:
            fix = "give each site its own --name"
            raise EhrseqError(
                f"two files are of the site {site['site']!r}", where=str(path), fix=fix
            )
        for other, earlier in zip(sites, files, strict=False):
            if _same_patients(site, other):
                fix = "name each hospital's result once"
                what = f"has the sums of {earlier}, so its patients would count twice"
                raise EhrseqError(what, where=str(path), fix=fix)
        sites.append(site)
    if not sites:
        raise EhrseqError(
            "there is no site to merge", fix="name the files that ehrseq study run wrote"
        )
    return sites


def _same_patients(site: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two sites have equal sums for some landmark, cause and horizon, to rounding.

    The sum of the predicted risks of other patients is another number, also where the counts are equal.
    """
    places = (
        (entry["landmark_days"], cell) for entry in site["landmarks"] for cell in entry["cells"]
    )
    for landmark, cell in places:
        found = _cell(other, landmark, cell["cause"], cell["horizon"])
        if found and all(math.isclose(found[name], cell[name], rel_tol=1e-6) for name in SUMS):
            return True
    return False


def merged(sites: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pooled metrics by landmark, cause and horizon, with each site's part."""
    first = sites[0]
    landmarks = sorted({entry["landmark_days"] for site in sites for entry in site["landmarks"]})
    rows = []
    for landmark in landmarks:
        for e, cause in enumerate(first["causes"]):
            for h, horizon in enumerate(first["horizons_days"]):
                found = [_cell(site, landmark, e, h) for site in sites]
                cells = [cell for cell in found if cell is not None]
                names = [
                    site["site"]
                    for site, cell in zip(sites, found, strict=True)
                    if cell is not None
                ]
                where = {
                    "landmark_days": landmark,
                    "cause": cause,
                    "horizon_days": horizon,
                    "sites": names,
                }
                absent = [site["site"] for site in sites if site["site"] not in names]
                rows.append({**where, "withheld": absent, **(_pooled(cells) if cells else {})})
    return {
        **STUDY.facts,
        "run": first["run"],
        "task": first["task"],
        "sites": [site["site"] for site in sites],
        "warnings": [
            f"Subjects of {site['site']} may have been in the model's training. If so, its results are too good."
            for site in sites
            if site.get("seen_in_training")
        ],
        "subjects": [
            {
                "site": site["site"],
                "landmark_days": entry["landmark_days"],
                "subjects": entry["subjects"],
            }
            for site in sites
            for entry in site["landmarks"]
        ],
        "rows": rows,
    }


def _pooled(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "n": sum(cell["n"] for cell in cells),
        "events": sum(cell["events"] for cell in cells),
        **pooled(cells),
        "calibration": pooled_bins(cells),
        "between_sites": {metric: heterogeneity(cells, metric=metric) for metric in ("c", "oe")},
        "each_site": [
            {
                **pooled([cell]),
                "n": cell["n"],
                "events": cell["events"],
                "calibration": pooled_bins([cell]),
            }
            for cell in cells
        ],
    }


def _cell(site: dict[str, Any], landmark: float, e: int, h: int) -> dict[str, Any] | None:
    for entry in site["landmarks"]:
        if entry["landmark_days"] == landmark:
            return next(
                (cell for cell in entry["cells"] if (cell["cause"], cell["horizon"]) == (e, h)),
                None,
            )
    return None

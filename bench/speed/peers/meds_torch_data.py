"""A turn of meds-torch-data's loading, in its own environment: `python meds_torch_data.py TENSORIZED SAMPLES …`.

TENSORIZED is what its `MTD_preprocess` made; SAMPLES is what `ours.py export` wrote, with MEDS labels beside it. Each
batch holds the same subjects up to the same moments as ours, in one process, from a warm page cache on both sides.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from turns import serve


def main() -> None:
    """Open the data set and wait for turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tensorized", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--max-length", type=int, default=10**6, help="measurements of a subject; the last ones"
    )
    arguments = parser.parse_args()
    from meds_torchdata import MEDSPytorchDataset, MEDSTorchDataConfig  # type: ignore[import-not-found]

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    config = MEDSTorchDataConfig(
        tensorized_cohort_dir=str(arguments.tensorized),
        max_seq_len=arguments.max_length,
        seq_sampling_strategy="to_end",
        task_labels_dir=str(arguments.samples.with_suffix("")),
    )
    dataset = MEDSPytorchDataset(config, split="train")
    place = {subject_id: i for i, (subject_id, _) in enumerate(dataset.index)}
    places = [place[sample["subject_id"]] for sample in json.loads(arguments.samples.read_text())]
    groups = [places[i : i + arguments.batch] for i in range(0, len(places), arguments.batch)]
    loader = dataset.get_dataloader(batch_sampler=groups)

    def load() -> int:
        return sum(len(batch.code) for batch in loader)

    first = next(iter(loader))
    held = float((first.code != first.PAD_INDEX).sum()) / len(first.code)
    serve(
        load,
        {"shape": list(first.code.shape), "torch": torch.__version__, "codes_per_subject": held},
    )


if __name__ == "__main__":
    main()

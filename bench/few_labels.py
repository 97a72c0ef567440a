"""What records without labels are worth: `python bench/few_labels.py OUT [--panel sim_pairs] [--labelled 50 200 1000]`.

Pretrains on the training subjects of a panel without their labels, and then fits the panel's task with the labels of n
of them, in several arms: from scratch with the defaults of `ehrseq train` (`scratch`), from scratch with as many steps
as pretraining and fine-tuning together (`scratch_long`), boosted trees (`trees`), and from a pretrained model in each
mode (`masked_codes/full`, `masked_codes+time_to_code/frozen`). `scratch` and `trees` are fitted with all labels, too.
Every arm of one n stops early on the same tuning subjects, as many as the labels are worth, and is compared on all
held-out prediction times by mean negative log-likelihood.

Null controls, whose gain must vanish: `masked_codes-shuffled/full` (pretrained on codes shuffled over all visits) and,
in simulated panels, `masked_codes-other_pairs/full` (each A_k goes with another B in the records of the pretraining).
`time_to_code-random/frozen` freezes weights that nothing was learned into: what shuffled codes gain beyond it is what
the times of visits teach. A blend cannot start from a pretrained model, since its weights would not be out of fold.
`-everything` leaves no code out of the targets (`pretraining.exclude=none`), so that results with and without the
exclusion stand side by side: `time_to_code-everything/frozen` beside `time_to_code/frozen`.

Without `--arms` all of this is run: every objective, every mode, what docs/pretraining.md
recommends for few labels, the same without the exclusion, and both null controls.

Every finished arm is kept below OUT (delete its file to run it again); tables and the figures are made of all that is
there and of what `bench/results/few_labels` has; `--keep` adds to that. `[settings]` after an arm are those of its
fine-tuning alone.
"""

import argparse
from pathlib import Path

import torch

from _few_labels_arms import PANELS, Arm, Site
from _few_labels_results import finished, joined, keep, kept
from _few_labels_table import collect, figure, markdown

# From scratch with the settings of fine-tuning, which has no dropout: the gain over `scratch` alone proves nothing.
SAME = (
    "scratch[model.dropout=0,model.code_dropout=0,model.wide_head=false,model.age_polynomial=false]"
)
BLEND = "[training.blend=true]"
BOTH = "masked_codes+time_to_code"  # the default of `ehrseq pretrain`
RECOMMENDED = "time_to_code/frozen"
ARMS = (
    *("scratch", SAME, f"scratch{BLEND}", "trees"),
    *(f"{BOTH}/full", f"{BOTH}/frozen", "masked_codes/full"),
    *("time_to_code/full", RECOMMENDED),
    *(
        f"time_to_code-{control}/frozen"
        for control in ("shuffled", "other_pairs", "everything", "random")
    ),
    "scratch_long",  # as many steps as a pretraining had, so that one must be there
)


def main() -> None:
    """Run what is missing, then print the table of all that is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", help="settings of every network, as model.dim=32")
    parser.add_argument("--panel", choices=sorted(PANELS), default="sim_pairs")
    parser.add_argument("--subjects", type=int, default=4000, help="of a simulated panel")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--labelled", type=int, nargs="*", default=[50, 200, 1000], help="subjects with labels"
    )
    parser.add_argument("--arms", nargs="*", default=ARMS)
    parser.add_argument(
        "--all-labels",
        nargs="*",
        default=["scratch", "trees"],
        help="arms that get all labels, too",
    )
    parser.add_argument(
        "--pretraining", nargs="*", default=["training.epochs=20"], help="settings of it alone"
    )
    parser.add_argument("--table", action="store_true", help="only print what is there")
    parser.add_argument(
        "--keep", action="store_true", help="add the numbers to bench/results/few_labels"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in () if asked.table else asked.seeds:
        given = tuple(asked.settings), tuple(asked.pretraining)
        site = Site(asked.panel, asked.out, seed, asked.subjects, *given)
        sizes = [n for n in asked.labelled if n < site.most()]
        arms = [arm for arm in asked.arms if Arm.read(arm).fits(asked.panel)]
        for arm, n in [
            *((arm, n) for n in sizes for arm in arms),
            *((arm, None) for arm in asked.all_labels),
        ]:
            found = site.run(arm, n)
            print(
                f"{site.panel} seed {seed}  n = {n or 'all'}  {arm:<40} {found.mean():.4f}",
                flush=True,
            )
    if asked.keep:
        keep(finished(asked.out))
    found = collect(joined(kept(), finished(asked.out)))
    print(markdown(found))
    (asked.out / "few_labels.md").write_text(markdown(found))
    for panel in sorted({one.panel for one in found}):
        (asked.out / f"{panel}.svg").write_text(
            figure([one for one in found if one.panel == panel])
        )


if __name__ == "__main__":
    main()

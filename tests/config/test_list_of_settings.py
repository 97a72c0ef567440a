"""The list of all settings: who adds one says in docs/decisions.md who needs it, and why no default serves them."""

from ehrsequencing.config import StudyConfig
from ehrsequencing.config.files import setting_names

SETTINGS = {
    "data": "extracted time_zone",
    "visits": "by window gap column ignore dates",
    "values": "mode bins missing units carry",
    "vocabulary": "min_subjects",
    "splits": "by train tuning seed from_date column held_out_sites",
    "task": "name outcome title competing horizons main landmarks blanking same_day recurrent episodes",
    "task.index": "code which after first_visit age date file",
    "task.censoring": "code start date age dataset_end",
    "task.eligibility": "history min_age max_age",
    "task.eligibility.must_have": "code within count",
    "task.eligibility.must_not_have": "code within count",
    "task.deaths": "undated doubtful",
    "task.outcomes": "codes min_subjects",
    "model": (
        "size architecture dim heads layers dropout code_dropout history_dropout visit_encoder visit_mlp "
        "wide_head table_dim attention head position rotary code_position "
        "code_types age_bin_years age_polynomial delta_bins max_visits "
        "max_tokens"
    ),
    "training": (
        "epochs seed members subjects_per_step visit_budget min_steps masked_codes learning_rate "
        "schedule warmup_steps weight_decay precision patience "
        "checkpoint_seconds recalibration blend network distillation grid_bins device"
    ),
    "pretraining": "objectives",
    "transfer": "mode",
    "drift": "people",
    "evaluation": ("baselines bootstrap seed subjects decision_thresholds tuning_trials tripod"),
}


def test_every_setting_is_in_the_list() -> None:
    names = setting_names(StudyConfig)
    sections = {name.rpartition(".")[0] for name in names}
    listed = [f"{section}.{name}" for section, text in SETTINGS.items() for name in text.split()]
    assert sorted(set(names) - sections) == sorted(listed)
    assert len(listed) <= 110

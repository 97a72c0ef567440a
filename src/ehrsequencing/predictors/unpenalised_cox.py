"""Cox regression without a penalty: coefficients, robust standard errors, a test of proportional hazards.

    h(t | x) = h_0(t) · exp(β·x)

β maximises the partial likelihood of rows at risk during (entry, duration]. Ties are handled as Efron (1977) or Breslow
(1974) does: of d events at one time, event number l = 0 … d − 1 is compared with a risk set in which each of these d
rows weighs 1 − l / d (Efron), or 1 (Breslow).

The robust covariance is that of Lin & Wei (1989), its score residuals added up by person. The test of proportional
hazards is the score test of an effect β + γ·S(t−), S the Kaplan–Meier curve of the rows (Grambsch & Therneau 1994, in
the form of R's `cox.zph` since survival 3). A fit costs O(events · rows at risk) for each of some eight steps.
"""

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.predictors.cox import CoxRows

_MOST_STEPS = 50
_TOLERANCE = 1e-12  # of the relative gain in log-likelihood
_SINGULAR = 1e-10  # smallest eigenvalue of the information per event, covariates having sd 1


@np.errstate(divide="ignore", invalid="ignore")  # where there is no maximum
def fit_cox(rows: CoxRows, subject: Ints, *, is_efron: bool) -> dict[str, Floats]:
    """Fit by Newton's method with step halving.

    Args:
        rows: Covariates in their own units, entry, duration and event of each row; at least one has an event.
        subject: (n,) whose row it is.
        is_efron: How events at one time are handled; False: as Breslow did.

    Returns:
        Of each covariate, (F,): `coef`, the log hazard ratio of one unit; `se`, from the information; `robust_se`, from
        the sandwich over people; `p_proportional`, of the test that its effect is the same at all times. And `p_all`,
        (), of that test of all covariates together. The tests are NaN where all events are at one time.

    Raises:
        EhrseqError: There is no finite maximum.

    Example:
        >>> x, days = np.array([[1.0], [0.0], [1.0], [0.0]]), np.arange(1.0, 5.0)
        >>> rows = CoxRows(x, np.zeros(4), days, np.array([True, True, True, False]))
        >>> fit_cox(rows, np.arange(4), is_efron=True)["coef"].round(4).tolist()  # log((1 + √17) / 2), by hand
        [0.9406]
    """
    from scipy.special import chdtrc

    scale = np.where(rows.x.std(axis=0) > 0, rows.x.std(axis=0), 1.0)
    z = (rows.x - rows.x.mean(axis=0)) / scale
    beta, step, before = np.zeros(len(scale)), np.zeros(len(scale)), -np.inf
    for _ in range(_MOST_STEPS):
        value, residuals, slope, information = _moments(rows, z, beta + step, is_efron)
        if value < before:
            step = step / 2
            continue
        if np.linalg.eigvalsh(information[0])[0] < _SINGULAR * rows.event.sum():
            break
        covariance = np.linalg.inv(information[0])
        beta, gain, before = beta + step, value - before, value
        step = covariance @ residuals.sum(axis=0)
        if gain <= _TOLERANCE * abs(value):
            owner = np.unique(subject, return_inverse=True)[1].reshape(-1)
            moved = np.zeros((owner.max() + 1, len(scale)))
            np.add.at(moved, owner, residuals @ covariance)
            own = information[2] - information[1] @ covariance @ information[1]
            if np.linalg.eigvalsh(own)[0] < _SINGULAR:  # events at one time only
                own = np.full_like(own, np.nan)
            return {
                "coef": beta / scale,
                "se": np.sqrt(np.diag(covariance)) / scale,
                "robust_se": np.sqrt(np.square(moved).sum(axis=0)) / scale,
                "p_proportional": chdtrc(1, slope**2 / np.diag(own)),
                "p_all": chdtrc(len(scale), slope @ np.linalg.solve(own, slope)),
            }
    raise EhrseqError(
        "the likelihood has no finite maximum",
        where="Cox regression",
        fix="leave out covariates that follow from others, or that all or none of the people with the event have",
    )


def _moments(
    rows: CoxRows, z: Floats, beta: Floats, is_efron: bool
) -> tuple[float, Floats, Floats, Floats]:
    """The log-likelihood and its derivatives at β of covariates `z` (n, F).

    Returns:
        The log-likelihood; score residuals (n, F), whose sum is the gradient by β; the gradient (F,) by γ at γ = 0; and
        (3, F, F) the covariance of the covariates at risk summed over the events, times 1, S(t−) and S(t−)².
    """
    value, survival, residuals = 0.0, 1.0, np.zeros(z.shape)
    slope, information = np.zeros(z.shape[1]), np.zeros((3, z.shape[1], z.shape[1]))
    score = z @ beta
    theta = np.exp(score - score.max())  # the largest cancels; keeps exp within bounds
    event = rows.event & (rows.entry_days < rows.duration_days)
    for day in np.unique(rows.duration_days[event]):
        at = np.flatnonzero((rows.entry_days < day) & (day <= rows.duration_days))
        tied = event[at] & (rows.duration_days[at] == day)
        n_tied = int(tied.sum())
        value += float(np.log(theta[at][tied]).sum())
        for place in range(n_tied):
            weight = theta[at] * (1.0 - tied * is_efron * place / n_tied)
            value -= float(np.log(weight.sum()))
            share = weight / weight.sum()
            centred = z[at] - share @ z[at]
            residuals[at] += (tied / n_tied - share)[:, None] * centred
            slope += survival * (tied @ centred) / n_tied
            covariance = (share[:, None] * centred).T @ centred
            information += survival ** np.arange(3)[:, None, None] * covariance
        survival *= 1.0 - n_tied / len(at)
    return value, residuals, slope, information

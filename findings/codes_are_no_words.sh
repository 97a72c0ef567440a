#!/usr/bin/env bash
# E11.9 and E11.2 are one word, and 250.00 and V45.00 share one, for the tools that count words.
#
# Packages:  scikit-learn 1.9.1, tokenizers 0.23.3, gensim 4.4.0
# Guess:     a patient's codes, joined by blanks, are words: each code is one.
# Seen:      of the codes E11.9 E11.2 I10 250.00 V45.00:
#              scikit-learn CountVectorizer, TfidfVectorizer   e11 e11 i10 250 00 v45 00
#              tokenizers, Whitespace                          E11 . 9 E11 . 2 I10 250 . 00 V45 . 00
#              gensim simple_preprocess                        (nothing)
#              tokenizers, WhitespaceSplit                     E11.9 E11.2 I10 250.00 V45.00
#            scikit-learn's words have two letters or digits at least, so what follows the dot is lost, or becomes a
#            word of its own. "Whitespace" splits at punctuation too. gensim keeps letters only.
# Matters:   bags of codes and vocabularies of codes are made with these. Diabetes with and without complications
#            becomes one column, "00" joins unrelated codes, and the model trains well. Write token_pattern=r"\S+"
#            (and lowercase=False), WhitespaceSplit, or give lists.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    scikit-learn==1.9.1 tokenizers==0.23.3 gensim==4.4.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from gensim.utils import simple_preprocess
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from tokenizers.pre_tokenizers import Whitespace, WhitespaceSplit

codes = "E11.9 E11.2 I10 250.00 V45.00"
seen = {
    "CountVectorizer": CountVectorizer().build_analyzer()(codes),
    "TfidfVectorizer": TfidfVectorizer().build_analyzer()(codes),
    "Whitespace": [word for word, _ in Whitespace().pre_tokenize_str(codes)],
    "simple_preprocess": simple_preprocess(codes),
    "WhitespaceSplit": [word for word, _ in WhitespaceSplit().pre_tokenize_str(codes)],
    "CountVectorizer, token_pattern": CountVectorizer(token_pattern=r"\S+", lowercase=False).build_analyzer()(codes),
}
for name, words in seen.items():
    print(f"{name:31}", *words)
patients = CountVectorizer().fit_transform(["E11.9 I10", "E11.2 I10"])
print("columns of two patients, E11.9 I10 and E11.2 I10:", patients.toarray().tolist())
assert seen["CountVectorizer"] == seen["TfidfVectorizer"] == ["e11", "e11", "i10", "250", "00", "v45", "00"], "changed"
assert patients.toarray().tolist() == [[1, 1], [1, 1]], "the two patients differ now"
assert seen["Whitespace"] == "E11 . 9 E11 . 2 I10 250 . 00 V45 . 00".split(), "Whitespace changed"
assert seen["simple_preprocess"] == [], "simple_preprocess changed"
assert seen["WhitespaceSplit"] == seen["CountVectorizer, token_pattern"] == codes.split(), "the remedies changed"
PY

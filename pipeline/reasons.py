"""Why a record is no document: the words of rejects.jsonl and of a manifest's counts."""

DAMAGED = "damaged archive"
TOO_LARGE = "too large"
NOT_UTF8 = "not UTF-8"
BROKEN_JSON = "broken JSON"
BROKEN_CSV = "broken CSV"
NOT_AN_OBJECT = "not an object"
NO_TEXT = "no text"
WRONG_TYPE = "wrong type"
WRONG_COLUMNS = "wrong number of columns"
LONE_SURROGATE = "lone surrogate"
SKIPPED = "skipped"  # asked for, and so no fault

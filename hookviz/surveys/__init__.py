"""A whole data set through a model: what each channel does over thousands of images.

In: a model, images, layers. Out: a folder of shards, and a Survey that reads it. Must not know:
the widget, the command line, comparison.

Everything hangs on the shard: a fixed range of images, whose file is there whole or not at all.
"""

from __future__ import annotations

from hookviz.surveys._facts import names_function
from hookviz.surveys._reader import Hit, LayerStatistics, Survey, SurveyFailure, open_survey
from hookviz.surveys._survey import SurveyProgress, survey

__all__ = [
    "Hit",
    "LayerStatistics",
    "Survey",
    "SurveyFailure",
    "SurveyProgress",
    "names_function",
    "open_survey",
    "survey",
]

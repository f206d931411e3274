"""What the papers measure, of any run or study: every module computes the numbers that a figure and a section show."""

__all__: list[str] = []

"""An example of a labelgap plug-in: one method, one data set, one backbone."""

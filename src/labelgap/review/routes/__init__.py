"""The routes of the review page, one module for each part of it."""

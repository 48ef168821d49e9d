"""The whole way in one call: discover, parts of objects, banks applied, how many factors."""

"""Every parser of what comes from outside, given a million inputs that are nearly right (script/fuzz).

`targets` are the parsers, with what they are given to begin with and what they may answer; `inputs` makes the inputs;
`campaign` gives them, in processes of their own, and says what was found. What was found is in `findings`, by the name
of the target, and given again by the tests.
"""

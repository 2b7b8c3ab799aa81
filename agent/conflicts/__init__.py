"""What lost a conflict, was in the way, or was deleted elsewhere: kept, listed, and given back."""

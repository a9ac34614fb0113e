"""Reach and judge put together: a live session, a stack dump with its verdict, a capture and the way back."""

"""`python -m outrider` is `outrider`."""

from .cli import main

if __name__ == "__main__":
    main()

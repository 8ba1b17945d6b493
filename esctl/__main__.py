"""`python -m esctl` is the command line."""

from esctl.cli import main

if __name__ == "__main__":
    main()

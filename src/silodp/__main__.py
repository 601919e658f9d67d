"""`python -m silodp`: the command line of this interpreter's silodp, where no script is on the PATH."""

from silodp.cli import main

if __name__ == "__main__":  # processes that multiprocessing starts import this file again
    main()

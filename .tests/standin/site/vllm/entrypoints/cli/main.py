"""Command line of the stand-in: serve, bench serve, --version."""

import sys


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    # No model and no options: the list of options, which stops at the parser.
    if argv in (["serve"], ["bench", "serve"]):
        from vllm import standin_options

        return standin_options.main(argv)
    if argv[:1] == ["serve"]:
        from vllm import standin_server

        return standin_server.main(argv[1:])
    if argv[:2] == ["bench", "serve"]:
        from vllm import standin_client

        return standin_client.main(argv[2:])
    if argv[:1] in (["--version"], ["-v"]):
        from vllm import __version__

        print(__version__)
        return 0
    print("usage: vllm {serve,bench serve} ...\nvllm: error: the stand-in knows serve and bench serve", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

/* `muster completion bash|zsh|tcsh`: prints the script. */
#include <string.h>

#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/completion.h"

static const char help[] =
    "usage: muster completion bash|zsh|tcsh\n"
    "\n"
    "Prints the completions of muster and torchrun for a shell. To use them from now on:\n"
    "  bash  muster completion bash > ~/.local/share/bash-completion/completions/muster\n"
    "        (and a second copy named torchrun)\n"
    "  zsh   muster completion zsh > FOLDER/_muster, with FOLDER in $fpath before compinit\n"
    "  tcsh  muster completion tcsh > ~/.muster.tcsh, and \"source ~/.muster.tcsh\" in ~/.tcshrc\n"
    "For this session only: source <(muster completion bash)\n";

int cmd_completion(int argc, char **argv) {
    const char *shell = argc > 1 ? argv[1] : "";
    if (completion_knows(shell)) {
        return completion_print(shell, "muster completion");
    }
    if (strcmp(shell, "--help") == 0 || strcmp(shell, "-h") == 0) {
        return cli_print(help);
    }
    char text[256] = "name a shell: bash, zsh or tcsh";
    if (shell[0] != '\0') {
        (void)str_format(text, sizeof text, "there is no completion for '%.100s'; bash, zsh and tcsh are known", shell);
    }
    cli_error("muster completion", true, text);
    return CLI_EXIT_USAGE;
}

"""manual.py program PROGRAM VERSION README FOLDER
manual.py library HEADER VERSION FOLDER

Manual pages, of the texts that there are: millrace.1 of what PROGRAM says of itself and its verbs under --help, with the exit codes of README
(tools/README.md); millrace.3 of HEADER's comments and declarations, with a link to it for each function. FOLDER is a MANPATH's. The date is
SOURCE_DATE_EPOCH's, if there is one."""
import os
import re
import subprocess
import sys
import time


def escaped(text):
    """Text as troff shows it, character by character."""
    text = text.replace('\\', '\\e').replace('-', '\\-').replace("'", '\\(aq').replace('`', '\\(ga').replace('^', '\\(ha').replace('~', '\\(ti')
    return '\n'.join('\\&' + line if line.startswith('.') else line for line in text.split('\n'))


def page(name, number, version, manual, body):
    epoch = os.environ.get('SOURCE_DATE_EPOCH')
    date = time.strftime('%Y-%m-%d', time.gmtime(int(epoch))) if epoch else ''
    return '.TH %s %d "%s" "Millrace %s" "%s"\n%s' % (name.upper(), number, date, version, manual, body)


def section(title):
    # Words are not broken, nor lines stretched: many words are names.
    return '.SH %s\n.nh\n.nr HY 0\n.ad l\n' % title.upper()


def paragraph(text):
    return '.PP\n%s\n' % escaped(text)


def item(tag, text):
    return '.TP\n.B %s\n%s\n' % (escaped(tag), escaped(text))


def listing(text):
    return '.PP\n.in +2n\n.EX\n%s\n.EE\n.in\n' % escaped(text)


def write(folder, number, name, text):
    folder = os.path.join(folder, 'man%d' % number)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, '%s.%d' % (name, number)), 'w', encoding='utf-8') as f:
        f.write(text)
    return folder


# Of the program. Its help has a description, `Usage:`, and lists: titles at the left edge, and behind two blanks a name and behind at least two
# more, or on the next line, what it is.


class Help:

    def __init__(self, program, verbs):
        environment = {'PATH': '/usr/bin:/bin', 'LC_ALL': 'C.UTF-8', 'HOME': '/nonexistent'}
        said = subprocess.run([program, *verbs, '--help'], stdout=subprocess.PIPE, check=True, env=environment).stdout.decode()
        about, usage, rest = re.fullmatch(r'(.*?)^Usage: (.*?)\n\n(.*)', said, re.S | re.M).groups()
        self.about, self.usage = about.strip(), ' '.join(['millrace', *usage.split()[1:]])
        self.lists, self.behind = {}, ''
        for part in rest.strip().split('\n\n'):
            title, _, lines = part.partition('\n')
            if not title.endswith(':'):
                self.behind = part
                continue
            items = self.lists[title[:-1]] = []
            for line in lines.split('\n'):
                if line.startswith('   '):  # more about the last one
                    items[-1][1] = ' '.join([*items[-1][1].split(), *line.split()])
                else:
                    tag, _, text = line[2:].partition('  ')
                    items.append([tag, text.strip()])


def program_page(program, version, readme):
    top = Help(program, [])
    body = section('name') + 'millrace \\- %s\n' % escaped(top.about.partition(';')[0].replace('Millrace ', '', 1))
    body += section('synopsis') + paragraph(top.usage) + section('description') + paragraph(top.about) + paragraph(top.behind)
    verbs = [[tag] for tag, _ in top.lists['Subcommands']]
    body += section('commands')
    while verbs:
        verb = verbs.pop(0)
        one = Help(program, verb)
        body += '.SS %s\n' % escaped(' '.join(verb)) + paragraph(one.usage) + paragraph(one.about)
        for title, items in one.lists.items():
            if title == 'Subcommands':
                verbs = [[*verb, tag] for tag, _ in items] + verbs
            for tag, text in items:
                if not tag.startswith('-h,') and title != 'Subcommands':
                    body += item(tag, text)
    body += section('exit status')
    with open(readme, encoding='utf-8') as f:
        table = re.search(r'^## Exit codes\n.*?^\|---[-|]*\n(.*?)\n\n', f.read(), re.S | re.M).group(1)
    for row in table.split('\n'):
        code, meaning, advice = (cell.strip().replace('`', '') for cell in row.strip('|').split('|'))
        body += item(code, '%s; %s' % (meaning, advice) if advice else meaning)
    return page('millrace', 1, version, 'User Commands', body)


# Of the library: its header from the top, declarations first and then what the comment before them says.


def comment_text(comment):
    """Lines of a comment without what makes it one."""
    lines = re.sub(r'^/\*|\*/$', '', comment.strip()).split('\n')
    return [re.sub(r'^ \* ?', '', line).rstrip() for line in lines]


def introduction(lines):
    """Of the header's first comment: a paragraph, and then items whose tags are at the left edge."""
    body, text, tag = '', [], None
    for line in [*lines, None]:
        start = re.match(r'(\w+)  +(.*)', line) if line is not None else None
        if start is None and line:
            text.append(line.strip())
        if (start or not line) and text:
            body += paragraph(' '.join(text)) if tag is None else item(tag, ' '.join(text))
            text = []
        if start:
            tag, text = start.group(1), [start.group(2)]
    return body


def library_page(header, version):
    with open(header, encoding='utf-8') as f:
        text = f.read()
    first, rest = re.fullmatch(r'(/\*.*?\*/)\n(.*)', text, re.S).groups()
    about = comment_text(first)
    name, _, _ = ' '.join(' '.join(about).split()).partition('. ')
    body = section('name') + 'millrace \\- %s\n' % escaped(name.partition(': ')[2])
    body += section('synopsis') + listing('#include <millrace.h>\n\ncc ... $(pkg-config --cflags --libs millrace)')
    body += section('description') + introduction(about) + section('interface')
    functions = []
    # A paragraph of the header has comments, each about the declarations that follow; those of the preprocessor are not told.
    rest = re.sub(r'^#.*\n(?=(?:#.*\n)*$)|^(?:#.*|extern "C" \{|\})\n', '', rest, flags=re.M).replace('MR_API ', '')
    for part in re.split(r'\n\n+', rest.strip()):
        for comment, declared in re.findall(r'((?:^/\*.*?\*/\n)?)((?:(?!^/\*)[^\n]*\n)+)', part + '\n', re.S | re.M):
            if not declared.strip():
                continue
            functions += re.findall(r'^[\w* ]+?[* ](mr_\w+)\(', declared, re.M)
            body += listing(declared.strip('\n'))
            if comment:
                body += '.RS 2n\n' + paragraph(' '.join(' '.join(comment_text(comment)).split())) + '.RE\n'
    return functions, page('millrace', 3, version, 'Library Functions', body)


def main():
    if sys.argv[1] == 'program':
        program, version, readme, folder = sys.argv[2:]
        write(folder, 1, 'millrace', program_page(program, version, readme))
        return
    header, version, folder = sys.argv[2:]
    functions, text = library_page(header, version)
    folder = write(folder, 3, 'millrace', text)
    for function in functions:
        link = os.path.join(folder, function + '.3')
        if os.path.lexists(link):
            os.remove(link)
        os.symlink('millrace.3', link)


if __name__ == '__main__':
    main()
